package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WindowPolicy says what a window does.
// +kubebuilder:validation:Enum=Allow;Deny
type WindowPolicy string

const (
	// WindowAllow allows changes while the window is open. If there is any such window, one of them has to be open.
	WindowAllow WindowPolicy = "Allow"

	// WindowDeny forbids changes while the window is open, whatever other windows allow.
	WindowDeny WindowPolicy = "Deny"
)

// Window is a time in which changes may begin, or must not: one that returns, with cron and window, or one from a time until another.
//
// +kubebuilder:validation:XValidation:rule="has(self.cron) != (has(self.from) || has(self.until))",message="set either cron, with window, or from and until"
// +kubebuilder:validation:XValidation:rule="has(self.cron) == has(self.window) && (has(self.cron) || !has(self.timeZone))",message="cron needs window, and window and timeZone need cron"
// +kubebuilder:validation:XValidation:rule="has(self.from) == has(self.until) && (!has(self.from) || timestamp(self.from) < timestamp(self.until))",message="from needs until, which has to be later"
type Window struct {
	// Policy is Allow or Deny.
	// +required
	Policy WindowPolicy `json:"policy"`

	// Cron says when the window opens: minute, hour, day of the month, month, day of the week. For example, "0 8 * * 1-4" is at 8:00 from Monday
	// to Thursday.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Cron string `json:"cron,omitempty"`

	// TimeZone of cron, for example "Europe/Berlin". Defaults to UTC.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	TimeZone string `json:"timeZone,omitempty"`

	// Window is for how long the window is open, for example "8h": up to seven days.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('168h')",message="must be longer than 0 and at most 168h"
	// +optional
	Window *metav1.Duration `json:"window,omitempty"`

	// From is when a window that does not return opens.
	// +optional
	From *metav1.Time `json:"from,omitempty"`

	// Until is when that window closes.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}
