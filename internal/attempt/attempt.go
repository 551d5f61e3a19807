// Package attempt lets code that reads what somebody wrote give up from any depth: a grammar,
// a tokenizer's files. It panics with a [Failure] where that cannot be, and whoever began
// gets the error.
package attempt

// Failure is the panic of a part that cannot go on.
type Failure struct{ Err error }

// At is what f makes, or the error of the failure that ended it. Other panics go on.
func At[T any](f func() T) (v T, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case Failure:
			err = p.Err
		default:
			panic(p)
		}
	}()
	return f(), nil
}

// Must is v, as part of an attempt.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(Failure{err})
	}
	return v
}
