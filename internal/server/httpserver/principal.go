package httpserver

import "context"

// KeyName names the key of the request that a context belongs to; "" where there are no keys.
func KeyName(ctx context.Context) string {
	if sc, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return sc.Principal().Name
	}
	return ""
}

// CanRead tells whether the key of a request may read what the key of a name keeps: the same key
// may, an operator may, and so may the server itself, which continues what it accepted. Records
// without an owner are for operators: they were kept while there were no keys, or by a build that
// stored no owner. Without keys every request has the role operator.
func CanRead(ctx context.Context, holder string) bool {
	sc, ok := ctx.Value(scopeKey{}).(*scope)
	return !ok || sc.Principal().Role == RoleOperator || holder != "" && sc.Principal().Name == holder
}
