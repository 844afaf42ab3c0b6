# LD_LIBRARY_PATH=build python3 examples/append.py; WALSIDECAR_SOCKET names another socket
import ctypes, os
lib, w = ctypes.CDLL("libwalsidecar.so.0"), ctypes.c_void_p()
assert lib.wal_open(ctypes.byref(w), os.getenv("WALSIDECAR_SOCKET", "walsidecar-data/wal.sock").encode(), None) == 0
result = (ctypes.c_uint64 * 16)()  # a wal_result: error and duplicate, then offset, position, …
assert lib.wal_append(w, b"greetings", b"hello from Python", ctypes.c_size_t(17), None, 5000, result) == 0
print("offset", result[1])
