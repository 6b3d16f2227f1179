from flask import Flask, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from .extensions import login_manager


def on_http_exception(error: HTTPException) -> ResponseReturnValue:
    code = error.code or 500
    if request.path.startswith("/api/"):
        return jsonify(error=error.name), code
    return render_template("error.html", name=error.name, text=error.description), code


@login_manager.unauthorized_handler
def on_unauthorized() -> ResponseReturnValue:
    if request.path.startswith("/api/"):
        return jsonify(error="Unauthorized"), 401
    return redirect(url_for("auth.log_in"))


def register_errors(app: Flask) -> None:
    app.register_error_handler(HTTPException, on_http_exception)
