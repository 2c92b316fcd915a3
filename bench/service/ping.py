def beside_a_large_tenant(o): return iter(())
