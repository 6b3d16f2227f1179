class Config:
    SECRET_KEY = "change this, in development too"
    SQLALCHEMY_DATABASE_URI = "sqlite:///shop.db"
    PASSWORD_HASH_METHOD = "scrypt"
