"""The engine model as a whole: requests come, wait, are prefilled, write, end; time passes by what the work costs.

Pure and deterministic: nothing here reads a clock, and only :meth:`TwinEngine.run` moves the engine's own. What is
decided and when is what SGLang 0.5.23's scheduler decides; ``docs/design/twin-engine.md`` has the rules.
"""

from __future__ import annotations

from serve.twin.cost import Cost
from serve.twin.engine_model import Ask, EngineEvent, EngineSettings, Load
from serve.twin.tiers import Tiers
from serve.twin.tiers_storage import Storage


class TwinEngine:
    """One engine. Times are seconds of its own clock, which starts at 0."""

    def __init__(
        self, settings: EngineSettings, cost: Cost, storage: Storage | None = None, observer: object | None = None
    ) -> None:
        """``storage``: what an engine before this one has left on disk. ``observer``: told of changes in the tiers."""
        self.settings = settings
        self.cost = cost
        self.now = 0.0
        self.tiers = Tiers(settings.tiers, storage)

    def submit(self, at: float, ask: Ask) -> None:
        """A request arrives at ``at``, not before ``now``; it is queued ``cost.arrival_s`` later. Its end comes as one
        ``Ended``, also where it is refused. Raises ``ValueError`` for a rid that is running."""
        raise NotImplementedError

    def abort(self, at: float, rid: str) -> None:
        """End a request at ``at``, not before ``now``, or when the forward pass under way then has ended. An unknown
        rid does nothing."""
        raise NotImplementedError

    def run(self, until: float) -> list[EngineEvent]:
        """Go on to ``until``, not before ``now``: all that is known by then, in order of time. ``now`` is ``until``
        afterwards."""
        raise NotImplementedError

    def next_at(self) -> float | None:
        """When :meth:`run` would next have something to tell, or to decide; ``None``: idle."""
        raise NotImplementedError

    def load(self) -> Load:
        """A look at it now."""
        raise NotImplementedError

    def flush(self) -> bool:
        """Forget L1 and L2; ``False``, and nothing happens, while anybody runs or waits."""
        raise NotImplementedError
