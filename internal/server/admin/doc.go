// Package admin serves the routes of operators and monitors: health, cluster state, metrics,
// the OpenAPI document, and the page.
package admin
