// Package admin serves what operators and monitors read: health, cluster state, metrics,
// the OpenAPI document, and the page.
package admin
