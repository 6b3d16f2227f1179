from flask import Blueprint, abort, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from flask_login import current_user, login_required
from sqlalchemy import select

from .extensions import db
from .models import Product, User

main = Blueprint("main", __name__)


@main.get("/")
@login_required
def index() -> ResponseReturnValue:
    products = db.session.scalars(select(Product).where(Product.user_id == current_user.id))
    return render_template("index.html", products=products.all())


@main.post("/products")
@login_required
def create() -> ResponseReturnValue:
    db.session.add(Product(name=request.form["name"], user_id=current_user.id))
    db.session.commit()
    return redirect(url_for("main.index"))


@main.get("/users")
@login_required
def users() -> ResponseReturnValue:
    if not current_user.is_admin:
        abort(403)
    return render_template("users.html", users=db.session.scalars(select(User)).all())
