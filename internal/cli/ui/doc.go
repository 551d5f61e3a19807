// Package ui has the code that all commands share: their streams, progress bars, texts and small files.
package ui
