LARGEST_BYTES = 4 << 20  # of an envelope, and of a request over gRPC
