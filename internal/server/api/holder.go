package api

import "context"

// HolderOf names the key of the request that a context belongs to; "" where there are no keys.
func HolderOf(ctx context.Context) string {
	if sc, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return sc.who().Name
	}
	return ""
}

// Sees says whether the key of a request may see what the key of a name keeps: the same key does,
// and an operator, and the server itself, which continues what it accepted. Records without an
// owner are for operators: they were kept while there were no keys, or by a build that stored no owner.
// Where there are no keys, everybody is an operator.
func Sees(ctx context.Context, holder string) bool {
	sc, ok := ctx.Value(scopeKey{}).(*scope)
	return !ok || sc.who().Role == RoleOperator || holder != "" && sc.who().Name == holder
}
