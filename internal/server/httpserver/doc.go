// Package httpserver answers a table of routes. Each [Route] carries its role, limits and error
// format. The package checks keys and origins, bounds connections, bodies and their pace, writes
// streams under deadlines, and keeps the access and audit logs. It is independent of models.
package httpserver
