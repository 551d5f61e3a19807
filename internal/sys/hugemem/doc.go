// Package hugemem maps zeroed memory outside the Go heap, in huge pages where the system has them.
package hugemem
