"""What tests of executors are made of: the conformance kit, fakes without a model, a driver. The server never imports it."""
