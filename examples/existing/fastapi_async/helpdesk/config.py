from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HELPDESK_")

    database_url: str = "sqlite+aiosqlite:///helpdesk.db"
    jwt_secret: str = "change this, in development too: thirty-two bytes"
    jwt_minutes: int = 30
    password_hash_rounds: int = 600_000


settings = Settings()
