from fastapi import FastAPI

from .keys import auth
from .routes import router

app = FastAPI(title="Inventory")
app.include_router(router)
app.include_router(auth.key_routes(prefix="/keys"))
auth.install(app)


@app.get("/health")
def health() -> dict[str, bool]:
    return {"ok": True}
