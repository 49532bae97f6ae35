def update(w, grad, lr=0.1):
    return w - lr * grad
