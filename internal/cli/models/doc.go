// Package models has the commands that find, fetch, check and plan models, and the choice of the
// type of weights that fits.
package models
