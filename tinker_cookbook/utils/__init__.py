"""Small tools that every part of the cookbook may use."""
