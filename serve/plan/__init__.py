"""Capacity on paper: what each tier of an engine profile holds, and what that means for agents. Pure."""

from serve.plan.demand import Demand
from serve.plan.plan import Plan, PlanInputs, make_plan
from serve.plan.shape import ModelShape, shape_of

__all__ = ["Demand", "ModelShape", "Plan", "PlanInputs", "make_plan", "shape_of"]
