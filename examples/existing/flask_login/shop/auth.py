from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from flask_login import current_user, login_required, login_user, logout_user
from sqlalchemy import select

from .extensions import db
from .models import User

auth = Blueprint("auth", __name__)


@auth.route("/login", methods=["GET", "POST"])
def log_in() -> ResponseReturnValue:
    if request.method == "POST":
        user = db.session.scalar(select(User).where(User.name == request.form["name"]))
        if user is not None and user.check_password(request.form["password"]) and login_user(user):
            return redirect(url_for("main.index"))
        flash("Wrong name or password.")
    return render_template("login.html")


@auth.post("/logout")
@login_required
def log_out() -> ResponseReturnValue:
    logout_user()
    return redirect(url_for("auth.log_in"))


@auth.post("/password")
@login_required
def change_password() -> ResponseReturnValue:
    if not current_user.check_password(request.form["old"]):
        flash("Wrong password.")
    else:
        current_user.set_password(request.form["new"])
        db.session.commit()
    return redirect(url_for("main.index"))
