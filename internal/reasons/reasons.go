// Package reasons explains the reasons of conditions: the rows of docs/conditions.md, for programs.
package reasons

// Explanation says what a reason of a condition means.
type Explanation struct {
	// Kind of the object, and the reason.
	Kind, Reason string
	// State is what an object with the reason is doing, and whether that counts as a failure.
	State string
	// Means is the meaning, Wakes what brings the object back, and Todo what a user can do. The last two may be empty.
	Means, Wakes, Todo string
}

// Find returns the explanation of a reason. An Update waits for some of the reasons of its Stack too, which are explained as those.
func Find(kind, reason string) (Explanation, bool) {
	for _, explanation := range explanations() {
		if explanation.Kind == kind && explanation.Reason == reason {
			return explanation, true
		}
	}
	return Explanation{}, false
}
