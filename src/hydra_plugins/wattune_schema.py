"""Registers the schema with Hydra, so that `dvc exp run -S` and `make params` reject wrong types and unknown keys."""

from hydra.core.config_store import ConfigStore

from wattune.config import Config

ConfigStore.instance().store(name="wattune_schema", node=Config)
