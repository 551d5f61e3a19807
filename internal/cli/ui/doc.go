// Package ui has what all commands share: their streams, progress bars, texts and small files.
package ui
