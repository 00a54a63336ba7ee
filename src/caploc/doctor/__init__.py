"""What this machine can do, what a model looks like, whether a run folder is sound."""

from caploc.doctor.examination import Examined, examine_folder, repair
from caploc.doctor.machine import machine_facts, model_facts

__all__ = ["Examined", "examine_folder", "machine_facts", "model_facts", "repair"]
