from flask import Blueprint, abort, jsonify, request
from flask.typing import ResponseReturnValue
from flask_login import current_user, login_required
from sqlalchemy import select

from .extensions import db
from .models import Product

api = Blueprint("api", __name__, url_prefix="/api")


@api.get("/products")
@login_required
def list_products() -> ResponseReturnValue:
    products = db.session.scalars(select(Product).where(Product.user_id == current_user.id))
    return jsonify([product.to_dict() for product in products])


@api.patch("/products/<int:product_id>")
@login_required
def update_product(product_id: int) -> ResponseReturnValue:
    product = db.get_or_404(Product, product_id)
    if product.user_id != current_user.id and not current_user.is_admin:
        abort(404)
    product.in_stock = int(request.get_json()["in_stock"])
    db.session.commit()
    return product.to_dict()
