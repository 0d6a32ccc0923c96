package shape

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// InvalidError says that a Workspace asks for a pod that can never work. Only an edit of the Workspace helps.
type InvalidError struct {
	// Problems name the fields, from "spec" of the Workspace, and what is wrong with each. There is at least one, and no value of
	// a variable in them.
	Problems field.ErrorList
}

// Error lists the fields with what is wrong with them.
func (e *InvalidError) Error() string {
	return e.Problems.ToAggregate().Error()
}
