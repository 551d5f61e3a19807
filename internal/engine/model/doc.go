// Package model describes models: the config of an architecture, its layers, and the name and shape of
// every tensor. It reads settings of config.json and checks each against a range before it sizes
// anything. Package families has a file for each architecture, and package checkpoint opens files.
//
// It does not compute. Errors name the file, the tensor or field, and the value. See
// docs/adding-a-model.md.
package model
