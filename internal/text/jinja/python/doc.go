// Package python has Python's values for chat templates: their types, equality, keys, truth and printed
// forms. None is nil, then bool, int64, *big.Int (only from JSON: printed and compared, no arithmetic),
// float64, Str, *List, *Dict.
//
// Every string records which of its bytes came from the request (Str). A Meter charges what the
// operations on values cost, and ends a rendering at its limits.
package python
