"""Which optimizer a model is created with. AdamW is the only one here."""

from tinker_engine.wire.fields import Fields, short


def check_optimizer_config(body: Fields) -> None:
    """Refuse a model that is to be trained with anything but AdamW."""
    config = body.optional_nested("optimizer_config")
    if config is not None and config.text("type", "adamw") != "adamw":
        raise config.error(
            "type",
            f"only AdamW is supported; send 'adamw' or nothing instead of {short(config.values.get('type'))}",
        )
