// Package reasons explains the reasons of conditions. It has the rows of docs/conditions.md as Go values.
package reasons

// Explanation says what a reason of a condition means.
type Explanation struct {
	// Kind of the object, and the reason.
	Kind, Reason string
	// State is what an object with the reason does, and whether that counts as a failure.
	State string
	// Means is the meaning, Wakes what brings the object back to its controller, and Todo what a user can do. The last two may be empty.
	Means, Wakes, Todo string
}

// Find returns the explanation of a reason. Some reasons of an Update that waits are also reasons of its Stack. They are explained under
// the kind Stack.
func Find(kind, reason string) (Explanation, bool) {
	for _, explanation := range explanations() {
		if explanation.Kind == kind && explanation.Reason == reason {
			return explanation, true
		}
	}
	return Explanation{}, false
}

// All returns the explanations of all reasons.
func All() []Explanation { return explanations() }
