"""The engine's twin behind the HTTP and event surface of SGLang, in real or scaled time."""
