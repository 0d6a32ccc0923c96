package cluster

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestContainerIsFoundInBothVersionsOfCgroups(t *testing.T) {
	g := NewWithT(t)
	mounts := "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n" +
		"cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
	old := containerOf(7, mounts, "3:memory:/pods/a\n2:cpu,cpuacct:/pods/a\n0::/\n")
	g.Expect(old).To(Equal(Container{PID: 7, memoryGroup: "/sys/fs/cgroup/memory/pods/a", processorGroup: "/sys/fs/cgroup/cpu/pods/a"}))
	unified := containerOf(7, "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/pods/a\n")
	g.Expect(unified).To(Equal(Container{PID: 7, memoryGroup: "/sys/fs/cgroup/pods/a", processorGroup: "/sys/fs/cgroup/pods/a", unified: true}))
}
