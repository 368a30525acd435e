"""The rules, by what they look at. All pure."""

from serve.doctor.rules.gpu import gpu_rules
from serve.doctor.rules.host import host_rules
from serve.doctor.rules.memory import memory_rules
from serve.doctor.rules.settings import settings_rules
from serve.doctor.rules.storage import storage_rules

__all__ = ["gpu_rules", "host_rules", "memory_rules", "settings_rules", "storage_rules"]
