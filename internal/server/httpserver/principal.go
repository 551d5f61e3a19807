package httpserver

import "context"

// KeyName names the key of the request that a context belongs to; "" where there are no keys.
func KeyName(ctx context.Context) string {
	if sc, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return sc.Principal().Name
	}
	return ""
}

// CanRead reports whether the key of a request may read the records of an owner, the name of a
// key. The owner may, an operator may, and so may the server itself, outside of requests. Records
// without an owner are for operators: they were stored while there were no keys, or by a build
// that stored no owner. Without keys every request has the role operator.
func CanRead(ctx context.Context, holder string) bool {
	sc, ok := ctx.Value(scopeKey{}).(*scope)
	return !ok || sc.Principal().Role == RoleOperator || holder != "" && sc.Principal().Name == holder
}
