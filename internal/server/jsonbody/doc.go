// Package jsonbody decodes the JSON bodies of requests under limits. A [Table] of [Param]s
// describes the fields of a request: decoders take bounds from it, and OpenAPI its schemas.
package jsonbody
