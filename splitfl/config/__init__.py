"""A job as a TOML file: read, checked as a whole, and handed on as frozen settings."""

from splitfl.config.compare import RunSettings as RunSettings
from splitfl.config.error import ConfigError as ConfigError
from splitfl.config.load import load_job as load_job
from splitfl.config.load import parse_job as parse_job
from splitfl.config.optimizer import build_optimizer as build_optimizer
from splitfl.config.reference import resolve as resolve
from splitfl.config.settings import JobSettings as JobSettings
