// Package families has one file for each family of decoders: its formulas, the settings of its
// config.json, and the names of its tensors. Importing it registers them with package model.
package families
