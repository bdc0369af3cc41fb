"""The same hostile programs in several public engines that run generated code, and in ours."""
