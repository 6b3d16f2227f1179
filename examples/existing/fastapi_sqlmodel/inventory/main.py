from fastapi import FastAPI

from .routes import router

app = FastAPI(title="Inventory")
app.include_router(router)


@app.get("/health")
def health() -> dict[str, bool]:
    return {"ok": True}
