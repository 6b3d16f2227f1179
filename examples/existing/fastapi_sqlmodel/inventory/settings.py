from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="INVENTORY_")

    database_url: str = "sqlite:///inventory.db"
    secret_key: str = "change this, in development too: thirty-two bytes"
    access_token_minutes: int = 60 * 24


settings = Settings()
