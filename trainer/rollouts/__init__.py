"""Episodes of the product itself: who samples replies, who judges them."""
