// Package attempt lets a parser fail from any depth without passing an error up. [Must] panics with
// a [Failure], and [At], at the outer end, returns it as an error.
package attempt

// Failure is the panic of a parser that cannot continue.
type Failure struct{ Err error }

// At returns the result of f, or the error of the Failure that ended it. It passes other panics on.
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

// Must returns v, or panics with a Failure if err is not nil.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(Failure{err})
	}
	return v
}
