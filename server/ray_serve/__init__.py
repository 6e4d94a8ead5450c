"""`cohort ray serve`: what runs in Ray's processes, an ingress and replicas, and how Ray Serve is told of them."""
