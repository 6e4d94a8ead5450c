// The library is compiled in parts, side by side: cohort_cpu.cpp and cohort_cpu_*.cpp, which take about as long each.
//
// Functions and types are in anonymous namespaces: a part's compiler sees all callers of what it compiles, and each part has a
// copy of the small functions that it uses. A function that one part defines and another calls is SHARED. It has C linkage
// because a type of an anonymous namespace among its parameters would hide it otherwise, and the library does not export it.
#pragma once

#define SHARED extern "C" __attribute__((visibility("hidden")))
