"""In a simulation the slowest clients start first; Flower's own code distributes the messages."""

import threading
from queue import Queue

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce.vce_api import (
    _register_nodes,
    add_messages_to_queue,
)
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from fedkd_flwr.grids.longest_first import LongestFirstGrid

RUN_ID = 5


class Served:
    """Flower's state and its hand-out of messages; clients that answer how long they took."""

    def __init__(self, num_nodes):
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state = factory.state()
        run = Run.create_empty(RUN_ID)
        run.primary_task_id, run.federation_id = RUN_ID, NOOP_FEDERATION_ID
        # As Flower's simulation begins.
        self.state.run_ids[RUN_ID] = RunRecord(run=run)
        self.state.task_store[RUN_ID] = Task(task_id=RUN_ID, run_id=RUN_ID)
        self.nodes = _register_nodes(num_nodes, factory)
        grid = InMemoryGrid(factory)
        self.grid = LongestFirstGrid(grid)
        self.grid.set_run(run)
        self.begun, self.seconds, self.stop = [], {}, threading.Event()
        queue = Queue()
        arguments = (self.state, queue, self.nodes, self.stop)
        threading.Thread(target=add_messages_to_queue, args=arguments, daemon=True).start()
        threading.Thread(target=self.answer, args=(queue,), daemon=True).start()

    def answer(self, queue):
        while not self.stop.is_set():
            message = queue.get()
            n = self.nodes[message.metadata.dst_node_id]
            self.begun.append(n)
            info = {"seconds": self.seconds[n]} if n in self.seconds else {}
            reply = Message(RecordDict({"info": ConfigRecord(info)}), reply_to=message)
            reply.metadata.__dict__["_message_id"] = f"reply {len(self.begun)} of {n}"
            self.state.store_message_res(reply)

    def exchange(self):
        """Send a message to everybody; return in which order they began, and the replies."""
        self.begun.clear()
        content = RecordDict({"config": ConfigRecord({})})
        messages = [Message(content, node, MessageType.TRAIN) for node in self.nodes]
        replies = list(self.grid.send_and_receive(messages, timeout=20))
        return list(self.begun), sorted(self.nodes[r.metadata.src_node_id] for r in replies)


@pytest.fixture
def served():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, 1, 1
    served = Served(5)
    yield served
    served.stop.set()


def test_the_slowest_clients_start_first(served):
    served.seconds = {0: 0.2, 1: 0.9, 2: 1.5, 4: 60.0}
    order, replied = served.exchange()
    assert (order, replied) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    # Below a second nobody is waited for, and nothing is known of client 3.
    assert served.exchange() == ([4, 2, 0, 1, 3], [0, 1, 2, 3, 4])
    # It is the last time that counts.
    served.seconds = {0: 8.0, 4: 0.1}
    served.exchange()
    assert served.exchange() == ([0, 2, 1, 3, 4], [0, 1, 2, 3, 4])
