package program

import (
	"fmt"
	"strings"
)

const (
	// root is the path of the whole program, as the manifest has it.
	root = "program"
	// maxShown is how many problems a message tells.
	maxShown = 5
)

// Problem is something wrong with a program.
type Problem struct {
	// Path of the field in the Program, for example program.resources.bucket.options.protect.
	Path string
	// Message says what is wrong. It never has a value of the program in it, which may be a secret.
	Message string
}

// InvalidError says why a program cannot be run. Somebody has to edit it.
type InvalidError struct {
	// Problems in the order of the program's keys; there is at least one.
	Problems []Problem
}

// Error tells the first problems.
func (e *InvalidError) Error() string {
	var told []string
	for _, problem := range e.Problems[:min(len(e.Problems), maxShown)] {
		told = append(told, problem.Path+": "+problem.Message)
	}
	if more := len(e.Problems) - maxShown; more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(told, "; ")
}
