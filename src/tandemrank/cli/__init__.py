"""TO WRITE"""
