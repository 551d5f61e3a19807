package api

import "context"

// HolderOf names the key of the request that a context belongs to; "" where there are no keys.
func HolderOf(ctx context.Context) string {
	if sc, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return sc.who().Name
	}
	return ""
}

// Sees says whether who asks in a context may see what the key of a name keeps: the same
// key, an operator, and the server itself, which goes on with what it accepted. What was
// kept without a key everyone sees.
func Sees(ctx context.Context, holder string) bool {
	sc, ok := ctx.Value(scopeKey{}).(*scope)
	return !ok || holder == "" || sc.who().Role == RoleOperator || sc.who().Name == holder
}
