"""What a user's program imports: `from headgate.client import Consumer, Producer, Subscriber`."""

from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.client.subscriber import Event, Left, Resync, Subscriber
from headgate.client.sync_consumer import SyncConsumer
from headgate.client.sync_producer import SyncProducer
from headgate.client.sync_subscriber import SyncSubscriber

__all__ = [
    "Consumer",
    "Event",
    "Left",
    "Producer",
    "Resync",
    "Subscriber",
    "SyncConsumer",
    "SyncProducer",
    "SyncSubscriber",
]
